//! Circles of a directed graph.

/// The strongly connected sets of two or more of `nodes` nodes, each in rising order.
pub fn circles(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let reached: Vec<Vec<bool>> = (0..nodes).map(|node| reachable(node, nodes, edges)).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (node, from_node) in reached.iter().enumerate() {
        let circle: Vec<usize> =
            (0..nodes).filter(|&other| from_node[other] && reached[other][node]).collect();
        if circle.len() > 1 && circle[0] == node {
            found.push(circle);
        }
    }
    found
}

/// The nodes that edges lead to from `start`, and itself.
fn reachable(start: usize, nodes: usize, edges: &[(usize, usize)]) -> Vec<bool> {
    let mut reached = vec![false; nodes];
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            open.extend(edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to));
        }
    }
    reached
}

#[test]
fn circles_are_strongly_connected_sets() {
    let edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 3), (4, 5), (5, 5)];
    assert_eq!(circles(6, &edges), [vec![0, 1, 2], vec![3, 4]]);
    assert_eq!(circles(6, &edges[1..2]), Vec::<Vec<usize>>::new());
}
