"""A program that is no job."""

print("nothing to train here")
