with page as (select * from books where id = %(id)s)
