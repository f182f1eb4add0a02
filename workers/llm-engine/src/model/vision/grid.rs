//! Order of the patches of a picture, the windows in which they see each other, and the interpolation of positions.

/// Row and column of each patch of a grid of (rows, columns), in the encoder's order. The patches that become one token follow
/// each other, and so do the tokens of a window.
pub(super) fn patch_order(
    [rows, columns]: [usize; 2],
    merge: usize,
    window: Option<usize>,
) -> impl Iterator<Item = [usize; 2]> {
    token_order([rows / merge, columns / merge], window).flat_map(move |[row, column]| {
        (0..merge).flat_map(move |y| (0..merge).map(move |x| [row * merge + y, column * merge + x]))
    })
}

/// Row and column of each token of a grid of (rows, columns), window by window.
fn token_order([rows, columns]: [usize; 2], window: Option<usize>) -> impl Iterator<Item = [usize; 2]> {
    let window = window.unwrap_or(rows.max(columns).max(1));
    (0..rows).step_by(window).flat_map(move |top| {
        (0..columns).step_by(window).flat_map(move |left| {
            let (bottom, right) = ((top + window).min(rows), (left + window).min(columns));
            (top..bottom).flat_map(move |row| (left..right).map(move |column| [row, column]))
        })
    })
}

/// Returns the number of patches of each window of a grid of (rows, columns) patches, in the encoder's order.
pub(super) fn window_lengths([rows, columns]: [usize; 2], merge: usize, window: usize) -> Vec<usize> {
    let lengths = |size: usize| {
        let tokens = size / merge;
        (0..tokens).step_by(window).map(move |start| window.min(tokens - start))
    };
    lengths(rows)
        .flat_map(|height| lengths(columns).map(move |width| height * width * merge * merge))
        .collect()
}

/// Returns the index of each token in the encoder's order, from the order of rows and columns; `None` if these are the same.
pub(super) fn restored_order(grids: &[[usize; 2]], merge: usize, window: Option<usize>) -> Option<Vec<u32>> {
    let window = window?;
    let mut order = Vec::new();
    for &[rows, columns] in grids {
        let (first, size) = (order.len(), [rows / merge, columns / merge]);
        order.resize(first + size[0] * size[1], 0);
        for (index, [row, column]) in token_order(size, Some(window)).enumerate() {
            order[first + row * size[1] + column] = (first + index) as u32;
        }
    }
    Some(order)
}

/// Returns the two rows of a table of `side` positions between which position `index` of `size` lies, and the weight of the
/// second. The first and the last position are those of the table.
pub(super) fn interpolated(index: usize, size: usize, side: usize) -> ([usize; 2], f32) {
    let position = index as f32 * (side - 1) as f32 / (size.max(2) - 1) as f32;
    let first = (position.floor() as usize).min(side - 1);
    ([first, (first + 1).min(side - 1)], position - first as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_windows_follow_each_other() {
        let order: Vec<_> = patch_order([2, 6], 2, Some(2)).collect();
        assert_eq!(order[..4], [[0, 0], [0, 1], [1, 0], [1, 1]]);
        assert_eq!(order.len(), 12);
        assert_eq!(window_lengths([2, 6], 2, 2), [8, 4]);
        assert_eq!(window_lengths([6, 6], 2, 2), [16, 8, 8, 4]);
        let tokens: Vec<_> = token_order([3, 3], Some(2)).collect();
        assert_eq!(tokens, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [1, 2], [2, 0], [2, 1], [2, 2]]);
        assert_eq!(restored_order(&[[3, 3]], 1, Some(2)).unwrap(), [0, 1, 4, 2, 3, 5, 6, 7, 8]);
        assert_eq!(restored_order(&[[3, 3]], 1, None), None);
    }

    #[test]
    fn ends_of_tables_are_kept() {
        for size in 1..9 {
            assert_eq!(interpolated(0, size, 4), ([0, 1], 0.0));
        }
        assert_eq!(interpolated(6, 7, 4).0, [3, 3]);
        assert_eq!(interpolated(1, 3, 4), ([1, 2], 0.5));
        assert_eq!(interpolated(5, 9, 1), ([0, 0], 0.0));
    }
}
