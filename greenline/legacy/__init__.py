"""What libraries that were written for threads need to be as good as with threads."""
