"""The operations on arrays, one signature each, in interchangeable backends."""
