"""Fill, copy and compare collections of any MongoDB: what ``flask documents`` does."""
