update genres
set name = given.name, updated_at = clock_timestamp(), version = genres.version + 1
from json_to_recordset(%(items)s::json) as given (id bigint, name text)
where genres.id = given.id
