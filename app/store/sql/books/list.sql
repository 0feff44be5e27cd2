with page as (select * from books order by id limit %(limit)s)
