delete from books where id = %(id)s
returning id
