update agents
set name = given.name, updated_at = clock_timestamp(), version = agents.version + 1
from json_to_recordset(%(items)s::json) as given (id bigint, name text)
where agents.id = given.id
