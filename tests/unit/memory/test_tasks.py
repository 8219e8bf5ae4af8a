"""The agent's task list, kept by calls that create and update single tasks."""

from typing import Any

from app.core.memory.digest import digest_of
from app.core.memory.digest.calls import Task
from app.core.memory.digest.record import from_json, to_json
from app.core.memory.digest.record import unite as unite_digests
from app.core.memory.extractive import write_summary
from app.core.plan.state.union import unite
from tests.unit.builders import COUNTER, Log


def add_call(log: Log, tool: str, arguments: dict[str, Any], says: str, **more: Any) -> None:
    log.result(log.call(tool, body={"arguments": arguments}), body={"content": says}, **more)


def created(log: Log, number: int, subject: str) -> None:
    add_call(log, "TaskCreate", {"subject": subject}, f"Task #{number} created successfully: {subject}")


def updated(log: Log, number: int, status: str, **more: Any) -> None:
    add_call(log, "TaskUpdate", {"taskId": str(number), "status": status}, f"Updated task #{number} status", **more)


def first_part() -> Log:
    log = Log()
    log.user(body={"content": "Port the tide gauge, then its report."})
    created(log, 1, "Port the gauge")
    created(log, 2, "Port the report")
    created(log, 3, "Print a page")
    updated(log, 1, "in_progress")
    return log


def second_part() -> Log:
    log = Log()
    updated(log, 1, "completed")
    updated(log, 2, "completed", is_error=True)
    updated(log, 2, "in_progress")
    updated(log, 3, "deleted")
    return log


def write(log: Log) -> str:
    return write_summary(log.events, (), "", digest_of(log.events), 800, COUNTER)


def test_a_part_lists_the_tasks_that_it_created_and_updated() -> None:
    assert digest_of(first_part().events).tasks == (
        Task("2", "pending", "Port the report"),
        Task("3", "pending", "Print a page"),
        Task("1", "in_progress", "Port the gauge"),
    )
    listed = "#1 [in_progress] Port the gauge\n#2 [pending] Port the report\n#3 [pending] Print a page"
    assert f"<tasks>\n{listed}\n</tasks>" in write(first_part())
    assert "<tasks>\n#1 [completed]\n#3 [deleted]\n#2 [in_progress]\n</tasks>" in write(second_part())


def test_where_the_room_ends_the_next_tasks_stay() -> None:
    log = Log()
    for number in range(1, 50):
        add_call(log, "TaskCreate", {"subject": f"Port the gauge of harbour {number}"}, f"Task #{number} created")
    updated(log, 1, "completed")
    text = write(log)
    *listed, others = text.partition("<tasks>\n")[2].partition("\n</tasks>")[0].splitlines()
    assert others == f"(and {49 - len(listed)} others)" and others in unite([text]).sections
    assert others not in unite([text, "<tasks>\n#28 [completed]\n</tasks>"]).sections
    assert listed == [f"#{number} [pending] Port the gauge of harbour {number}" for number in range(2, 2 + len(listed))]
    assert len(listed) < 48


def test_a_list_that_the_agent_asked_for_counts_as_updates() -> None:
    log = Log()
    add_call(log, "TaskList", {}, "#4 [pending] Sort the gauge\n#5 [completed] Read it\nno task\n#6 [odd] x")
    assert digest_of(log.events).tasks == (Task("4", "pending", "Sort the gauge"), Task("5", "completed", "Read it"))


def test_several_parts_show_each_task_once_in_its_newest_state() -> None:
    united = unite([write(first_part()), write(second_part())]).sections
    assert "<tasks>\n#1 [completed] Port the gauge\n#2 [in_progress] Port the report\n</tasks>" in united
    digest = unite_digests([digest_of(first_part().events), digest_of(second_part().events)])
    assert {task.line for task in digest.tasks} == {
        "#1 [completed] Port the gauge",
        "#2 [in_progress] Port the report",
        "#3 [deleted] Print a page",
    }
    assert from_json(to_json(digest)) == digest


def test_tasks_leave_when_none_is_open() -> None:
    done = Log()
    for number in (1, 2):
        updated(done, number, "completed")
    updated(done, 3, "deleted")
    assert "<tasks>" not in unite([write(first_part()), write(done)]).sections
