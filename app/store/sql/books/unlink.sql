delete from book_authors where book_id = %(id)s;
delete from book_genres where book_id = %(id)s;
