insert into books (title, published) values (%(title)s, %(published)s)
returning id
