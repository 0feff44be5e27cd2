module greenline/bench/engine

go 1.22
