with made as (
    insert into books (title, published)
    select title, published
    from rows from (json_to_recordset(%(items)s::json) as (title text, published date))
        with ordinality as given (title, published, place)
    order by place
    returning id
)
select id from made order by id
