-- Add the books of the lines after %(after)s and up to %(last)s, with their authors and genres, making
-- those that are new: as link.sql does, names in one order.
insert into books (id, title, published) overriding system value
select id, book ->> 'title', (book ->> 'published')::date
from sent_books
where line > %(after)s and line <= %(last)s
order by line;

insert into authors (name)
select distinct name
from sent_books cross join json_array_elements_text(book -> 'authors') as named (name)
where line > %(after)s and line <= %(last)s
    and not exists (select from authors where authors.name = named.name)
order by name
on conflict (name) do nothing;

insert into genres (name)
select distinct name
from sent_books cross join json_array_elements_text(book -> 'genres') as named (name)
where line > %(after)s and line <= %(last)s
    and not exists (select from genres where genres.name = named.name)
order by name
on conflict (name) do nothing;

-- The id of an author deleted meanwhile is 0, which the foreign key refuses.
insert into book_authors (book_id, author_id, position)
select sent_books.id, coalesce(authors.id, 0), min(position)
from sent_books
cross join json_array_elements_text(book -> 'authors') with ordinality as named (name, position)
left join authors on authors.name = named.name
where line > %(after)s and line <= %(last)s
group by 1, 2;

insert into book_genres (book_id, genre_id, position)
select sent_books.id, coalesce(genres.id, 0), min(position)
from sent_books
cross join json_array_elements_text(book -> 'genres') with ordinality as named (name, position)
left join genres on genres.name = named.name
where line > %(after)s and line <= %(last)s
group by 1, 2;
