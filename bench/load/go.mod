module greenline/bench/load

go 1.22
