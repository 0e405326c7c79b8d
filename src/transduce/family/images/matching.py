"""The cheapest matching: the Hungarian method, by shortest paths (Kuhn 1955; Jonker and Volgenant 1987)."""

import numpy as np

from transduce.errors import NotFiniteError, UserError


def cheapest(costs: np.ndarray) -> list[int]:
    """Return the column of each row of `costs` (M,N), M <= N, no column twice, with the least sum.

    Each row joins by a shortest path over reduced costs, in time M M N. Raises UserError for more rows (objects) than
    columns (queries), and NotFiniteError for costs that are not finite.
    """
    n_rows, n_columns = costs.shape
    if n_rows > n_columns:
        raise UserError(f"{n_rows} objects in an image: expected at most {n_columns}, one for each query; add queries")
    if not np.isfinite(costs).all():
        raise NotFiniteError(
            "costs of the matching: expected finite numbers; lower the learning rate or check the boxes"
        )
    of_rows = np.zeros(n_rows)  # prices, which keep all reduced costs at 0 or more
    of_columns = np.zeros(n_columns)
    row_of = np.full(n_columns, -1)
    for new in range(n_rows):
        lengths = np.full(n_columns, np.inf)
        before = np.full(n_columns, -1)
        done = np.zeros(n_columns, dtype=bool)
        row = new
        column = -1
        length = 0.0
        while row >= 0:  # until a column is free
            through = length + costs[row] - of_rows[row] - of_columns
            is_shorter = ~done & (through < lengths)
            lengths[is_shorter] = through[is_shorter]
            before[is_shorter] = column
            column = int(np.where(done, np.inf, lengths).argmin())
            length = lengths[column]
            done[column] = True
            row = row_of[column]
        of_rows[new] += length
        passed = done & (row_of >= 0)
        of_rows[row_of[passed]] += length - lengths[passed]
        of_columns[done] -= length - lengths[done]
        while column >= 0:  # each column on the path takes the row of the one before it
            row_of[column] = row_of[before[column]] if before[column] >= 0 else new
            column = before[column]
    columns = {int(row): column for column, row in enumerate(row_of) if row >= 0}
    return [columns[row] for row in range(n_rows)]
