-- Not as document.sql, which looks at the names of each book: all are read, and joined at once.
select row_to_json(book)
from (
    select
        books.title,
        books.published,
        coalesce(written.names, '{}') as authors,
        coalesce(shelved.names, '{}') as genres
    from books
    left join (
        select book_id, array_agg(name order by position) as names
        from book_authors join authors on authors.id = author_id
        group by book_id
    ) written on written.book_id = books.id
    left join (
        select book_id, array_agg(name order by position) as names
        from book_genres join genres on genres.id = genre_id
        group by book_id
    ) shelved on shelved.book_id = books.id
    order by books.id
) book
