select
    page.id,
    page.title,
    page.published,
    array(
        select row_to_json(author)
        from (
            select authors.id, authors.name
            from book_authors join authors on authors.id = book_authors.author_id
            where book_authors.book_id = page.id
            order by book_authors.position
        ) author
    ) as authors,
    array(
        select row_to_json(genre)
        from (
            select genres.id, genres.name
            from book_genres join genres on genres.id = book_genres.genre_id
            where book_genres.book_id = page.id
            order by book_genres.position
        ) genre
    ) as genres,
    to_char(page.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at,
    to_char(page.updated_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as updated_at,
    page.version
from page
