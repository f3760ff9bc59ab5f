"""A module in which models of the tests count."""

count = 0
places: list[int] = []
