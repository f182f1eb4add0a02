//! Finds the cycles of a directed graph.

/// Returns the strongly connected components with two or more nodes, each in ascending order.
pub fn cycles(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let reached: Vec<Vec<bool>> = (0..nodes).map(|node| reachable(node, nodes, edges)).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (node, from_node) in reached.iter().enumerate() {
        let cycle: Vec<usize> =
            (0..nodes).filter(|&other| from_node[other] && reached[other][node]).collect();
        if cycle.len() > 1 && cycle[0] == node {
            found.push(cycle);
        }
    }
    found
}

/// Returns which nodes are reachable from `start`, including itself.
fn reachable(start: usize, nodes: usize, edges: &[(usize, usize)]) -> Vec<bool> {
    let mut reached = vec![false; nodes];
    let mut pending = vec![start];
    while let Some(node) = pending.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            pending.extend(edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to));
        }
    }
    reached
}

#[test]
fn cycles_are_strongly_connected_components() {
    let edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 3), (4, 5), (5, 5)];
    assert_eq!(cycles(6, &edges), [vec![0, 1, 2], vec![3, 4]]);
    assert_eq!(cycles(6, &edges[1..2]), Vec::<Vec<usize>>::new());
}
