-- Give the book its authors and genres, making those that are new. Names in one order, so that
-- two transactions which add the same ones cannot wait for each other.
insert into authors (name)
select distinct name from unnest(%(authors)s::text[]) as name order by name
on conflict (name) do nothing;

insert into genres (name)
select distinct name from unnest(%(genres)s::text[]) as name order by name
on conflict (name) do nothing;

insert into book_authors (book_id, author_id, position)
select %(id)s, authors.id, min(position)
from unnest(%(authors)s::text[]) with ordinality as given (name, position)
join authors on authors.name = given.name
group by authors.id;

insert into book_genres (book_id, genre_id, position)
select %(id)s, genres.id, min(position)
from unnest(%(genres)s::text[]) with ordinality as given (name, position)
join genres on genres.name = given.name
group by genres.id;
