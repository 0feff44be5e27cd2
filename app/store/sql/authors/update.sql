update authors
set name = given.name, updated_at = clock_timestamp(), version = authors.version + 1
from json_to_recordset(%(items)s::json) as given (id bigint, name text)
where authors.id = given.id
