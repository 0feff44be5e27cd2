update books
set title = given.title,
    published = given.published,
    updated_at = clock_timestamp(),
    version = books.version + 1
from json_to_recordset(%(items)s::json) as given (id bigint, title text, published date)
where books.id = given.id
