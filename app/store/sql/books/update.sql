update books
set title = %(title)s, published = %(published)s, updated_at = clock_timestamp()
where id = %(id)s
returning id
