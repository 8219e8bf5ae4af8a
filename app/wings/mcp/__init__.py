"""The recall tool over the Model Context Protocol."""
