"""Functions of torch that change where a tensor's elements lie, or how many there are."""
