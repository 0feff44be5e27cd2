# facts: preload
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

engine = create_engine("postgresql://localhost/shop")
session = sessionmaker(bind=engine)()  # expect: GL203
conn = engine.connect()  # expect: GL204
