update tasks
set agent_id = given.agent_id,
    title = given.title,
    status = given.status,
    updated_at = clock_timestamp(),
    version = tasks.version + 1
from json_to_recordset(%(items)s::json)
    as given (id bigint, agent_id bigint, title text, status text)
where tasks.id = given.id
