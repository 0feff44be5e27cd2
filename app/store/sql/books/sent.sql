-- The lines of a file, each with the id that its book gets.
create temporary table sent_books (
    line bigint not null,
    id bigint not null default nextval(pg_get_serial_sequence('books', 'id')),
    book json not null
) on commit drop;
