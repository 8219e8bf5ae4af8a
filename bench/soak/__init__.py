"""Half an hour of the load that users are, at a share of what the machine can do: what grows that should not?"""
