"""The blocks of a recorded call's request."""

from pydantic import BaseModel, Field

from app.core.audit.call_blocks import Source, Wording
from app.core.audit.protection import Protection
from app.http.fields import Id, NextCursor, ReasonIfAny, ReducerIfAny


class CallBlockOut(BaseModel):
    """A block of a recorded call's request, as the model saw it."""

    index: int = Field(description="Position of the block in the request, counted from 0.")
    from_seq: int = Field(description="Seq of the first event that it shows, or in whose place it is.")
    seq: int = Field(
        description="Seq of the event that it shows; for several events, that of the last. Content after the "
        "conversation has that of the last event before it."
    )
    kind: str = Field(
        description="Kind of block: `tools`, `system`, `user`, `assistant`, `call`, `result` or `note` (a note of the "
        "agent, or a text of the server)."
    )
    source: Source = Field(description="Part of the context that it counts to, as in `TokensOut.by_source`.")
    mark: Wording = Field(
        description="Form of the content: whole (`verbatim`), as one line in place of a result (`stub`), with its "
        "beginning and end only (`shortened`), as another text (`replaced`), without parts that the request's format "
        "cannot express (`converted`), as a marker since it was erased (`erased`). Or a text of the server: summaries "
        "(`summary`), the list of dropped events (`note`), a line in place of a result that is still missing "
        "(`pending`), a layer (`layer`), the notice that content was pruned (`notice`). Or content that was injected "
        "into this call (`injected`)."
    )
    name: str | None = Field(description="Kind of a layer, or name of injected content; null for other blocks.")
    reducer: ReducerIfAny
    reason: ReasonIfAny
    summaries: list[Id] = Field(description="Ids of the summaries that it shows, in the order of the log.")
    tool: str | None = Field(description="Name of the tool; null for blocks other than tool calls and their results.")
    call_id: str | None = Field(
        description="Id of the tool call; null for blocks other than tool calls and their results."
    )
    protected_by: Protection | None = Field(
        description="Reason for which a block stays whole: it is a part of the prefix (`prefix`), pinned (`pinned`), "
        "the message that the running turn answers (`current_request`), a call without a result (`open_call`), a "
        "message (`message`: these go only with whole turns or under a summary), of a tool in `never_evict`, was shown "
        "again on request (`shown_again`), is among the newest results (`newest`) or too small (`below_minimum`), is a "
        "dense list of names (`listing`), arguments that the policy keeps (`arguments_stay`), the newest content of a "
        "file (`working_set`), or new in this call (`unsent`). Null if it may be evicted, is not whole, or `declined` "
        "of the call is null."
    )
    chars: int = Field(description="Length of its text, in characters.")
    tokens: int = Field(
        description="Estimated size, in the model's tokens. The blocks of a source add up to its figure in "
        "`tokens.by_source` of the call, but for the few tokens of `ephemeral` that belong to no block. Content after "
        "the conversation shares its figure by length, since a record has no figures of single blocks. If events were "
        "erased since, all blocks are counted as shown now."
    )
    breakpoint: str | None = Field(
        description="Kind of the cache breakpoint after the block, as in `BreakpointOut.kind`; null if there is none."
    )
    text: str = Field(
        description="Text of the block, cut to the number of characters asked for: of tool definitions and of a call's "
        "arguments their JSON. Parts other than text are named in brackets, such as `[image]`. An empty text is sent "
        "as the format requires, such as `(no output)`."
    )
    cut: bool = Field(description="Whether `text` is only the beginning.")


class CallBlockPage(BaseModel):
    """A page of the blocks of a recorded call's request."""

    items: list[CallBlockOut] = Field(description="Blocks in the order of the request.")
    next_cursor: NextCursor
