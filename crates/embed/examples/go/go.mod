module vouchsafe.example/talk

go 1.19
