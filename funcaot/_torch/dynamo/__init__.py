"""What Dynamo has to be told of our functions, and the lock that compilers share."""
