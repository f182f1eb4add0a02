use super::*;

const SEGMENT: usize = 1 << 20;
const BASE: usize = 0x1000_0000;

/// Creates an arena with adjacent segments of the first kind, since a driver may return adjacent memory.
fn arena(segments: &[usize]) -> Arena {
    let mut arena = Arena::default();
    for (i, len) in segments.iter().enumerate() {
        arena.add_segment(BASE + segments[..i].iter().sum::<usize>(), *len, 0);
    }
    arena
}

/// Allocates like the pool: a released block of the size, otherwise a part of a larger block.
fn reuse_or_carve(arena: &mut Arena, len: usize) -> Option<BlockId> {
    arena.reuse(len).or_else(|| arena.carve(sizes::kind(len), len))
}

#[test]
fn a_block_is_carved_from_the_smallest_free_block() {
    let mut arena = arena(&[4 * SEGMENT, SEGMENT]);
    let inside = arena.carve(0, SEGMENT).unwrap();
    assert_eq!((arena.address(inside), arena.len(inside)), (BASE + 4 * SEGMENT, SEGMENT));
    let first = arena.carve(0, SEGMENT).unwrap();
    assert_eq!((arena.address(first), arena.sums().free()), (BASE, 3 * SEGMENT));
    assert_eq!(arena.carve(0, 4 * SEGMENT), None);
    assert_eq!(arena.carve(0, 8 * SEGMENT), None);
}

#[test]
fn a_released_block_is_reused_for_its_size() {
    let mut arena = arena(&[SEGMENT]);
    let [a, b] = [256, 512].map(|len| arena.carve(0, len).unwrap());
    let at = arena.address(b);
    assert_eq!(arena.reuse(512), None);
    assert_eq!(arena.release(b), Some(Released { segment: 0, idle: false }));
    assert_eq!(arena.reuse(256), None);
    let again = arena.reuse(512).unwrap();
    assert_eq!(arena.address(again), at);
    assert_eq!(arena.release(a), Some(Released { segment: 0, idle: false }));
}

#[test]
fn adjacent_blocks_coalesce_but_segments_do_not() {
    let mut arena = arena(&[SEGMENT, SEGMENT]);
    let blocks: Vec<_> = (0..8).map(|_| reuse_or_carve(&mut arena, SEGMENT / 4).unwrap()).collect();
    let first: Vec<_> = blocks.iter().map(|&block| arena.address(block)).collect();
    assert_eq!((arena.sums().free(), arena.largest_idle(&[0])), (0, None));
    for i in [1, 3, 2, 0, 4, 6, 7, 5] {
        assert!(arena.release(blocks[i]).is_some());
    }
    assert_eq!(arena.carve(0, SEGMENT), None);
    arena.coalesce(0);
    assert_eq!(arena.carve(0, SEGMENT + 1), None);
    let mut whole = [(); 2].map(|()| arena.carve(0, SEGMENT).unwrap()).map(|block| arena.address(block));
    whole.sort_unstable();
    let least = *first.iter().min().unwrap();
    assert_eq!(whole, [least, least + SEGMENT]);
}

#[test]
fn a_rest_too_short_for_a_block_stays_with_its_block() {
    let mut arena = Arena::default();
    arena.add_segment(BASE, 17 * SEGMENT - 256, sizes::LARGE);
    let block = arena.carve(sizes::LARGE, 16 * SEGMENT).unwrap();
    assert_eq!((arena.len(block), arena.sums().free()), (17 * SEGMENT - 256, 0));
    arena.release(block).unwrap();
    let block = arena.carve(sizes::LARGE, 16 * SEGMENT - 256).unwrap();
    assert_eq!((arena.len(block), arena.sums().free()), (16 * SEGMENT - 256, SEGMENT));
}

#[test]
fn large_blocks_coalesce_when_they_are_released() {
    let mut arena = Arena::default();
    arena.add_segment(BASE, 32 * SEGMENT, sizes::LARGE);
    let blocks = [4, 8, 12, 8].map(|n| arena.carve(sizes::LARGE, n * SEGMENT).unwrap());
    for (i, longest) in [(0, 4), (2, 12), (1, 24), (3, 32)] {
        arena.release(blocks[i]).unwrap();
        assert_eq!(arena.longest_free(sizes::LARGE), longest * SEGMENT);
        assert_eq!(arena.longest_free(sizes::SMALL), 0);
    }
    let of_kind = arena.sums_of(sizes::LARGE);
    assert_eq!((of_kind.held, of_kind.live, of_kind.peak), (32 * SEGMENT, 0, 32 * SEGMENT));
    assert_eq!((of_kind, arena.sums_of(sizes::SMALL)), (arena.sums(), Sums::default()));
}

#[test]
fn only_blocks_in_use_can_be_released() {
    let mut arena = arena(&[SEGMENT]);
    let block = reuse_or_carve(&mut arena, 256).unwrap();
    assert_eq!(arena.release(BlockId(block.0 + 1)), None);
    assert_eq!(arena.release(BlockId(1000)), None);
    assert!(arena.release(block).is_some());
    assert_eq!(arena.release(block), None);
}

#[test]
fn idle_segments_are_found_by_size_and_age() {
    let mut arena = arena(&[SEGMENT, 3 * SEGMENT, 2 * SEGMENT]);
    let used = [3, 2, 1].map(|n| arena.carve(0, n * SEGMENT).unwrap());
    assert_eq!((arena.largest_idle(&[0]), arena.oldest_idle(), arena.sums().idle), (None, None, 0));
    for block in [used[1], used[0], used[2]] {
        assert!(arena.release(block).is_some_and(|released| released.idle));
    }
    assert_eq!((arena.largest_idle(&[0]), arena.oldest_idle()), (Some(1), Some(2)));
    assert_eq!((arena.remove(1), arena.remove(2)), (3 * SEGMENT, 2 * SEGMENT));
    assert_eq!((arena.largest_idle(&[0]), arena.oldest_idle()), (Some(0), Some(0)));
    assert_eq!((arena.sums().free(), arena.sums().held, arena.sums().idle), (SEGMENT, SEGMENT, SEGMENT));
    // The number of a removed segment is reused.
    assert_eq!(arena.add_segment(BASE, SEGMENT, 0), 2);
}

#[test]
fn idle_time_begins_with_the_first_call_that_finds_the_segment_idle() {
    let mut arena = arena(&[SEGMENT]);
    let [time, seconds] = [Duration::from_secs(10), Duration::from_secs(1)];
    let block = reuse_or_carve(&mut arena, SEGMENT).unwrap();
    assert_eq!(arena.idle_for(time, 1000 * seconds), None);
    arena.release(block).unwrap();
    assert_eq!(arena.idle_for(time, 2000 * seconds), None);
    assert_eq!(arena.idle_for(time, 2009 * seconds), None);
    // A short use in between restarts the idle time.
    let block = reuse_or_carve(&mut arena, SEGMENT).unwrap();
    assert_eq!(arena.idle_for(time, 2011 * seconds), None);
    arena.release(block).unwrap();
    assert_eq!(arena.idle_for(time, 2012 * seconds), None);
    assert_eq!(arena.idle_for(time, 2021 * seconds), None);
    assert_eq!(arena.idle_for(time, 2022 * seconds), Some(0));
}

/// Compares random operations with a list of the blocks in use.
#[test]
fn blocks_never_overlap_and_no_memory_is_lost() {
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut arena = arena(&[2 * SEGMENT; 4]);
    let mut used: Vec<(BlockId, usize, usize)> = Vec::new();
    for _ in 0..20_000 {
        match random(64) {
            0 => arena.coalesce(0),
            1 => {
                if let Some(segment) = arena.largest_idle(&[0]) {
                    assert_eq!(arena.remove(segment), 2 * SEGMENT);
                    arena.add_segment(BASE + 2 * SEGMENT * (100 + random(1 << 30)), 2 * SEGMENT, 0);
                }
            }
            2..32 if !used.is_empty() => {
                let (block, ..) = used.swap_remove(random(used.len()));
                assert!(arena.release(block).is_some());
            }
            _ => {
                let wanted = sizes::block(1 + random(SEGMENT / 3)).unwrap();
                let Some(block) = reuse_or_carve(&mut arena, wanted) else { continue };
                let (address, len) = (arena.address(block), arena.len(block));
                assert!(len >= wanted && len - wanted < sizes::least_rest(0, wanted));
                assert!(used.iter().all(|&(_, at, l)| address + len <= at || at + l <= address));
                used.push((block, address, len));
            }
        }
        let in_use: usize = used.iter().map(|(.., len)| len).sum();
        let sums = arena.sums();
        assert_eq!((sums.live, sums.free(), sums.held), (in_use, 8 * SEGMENT - in_use, 8 * SEGMENT));
        assert!(arena.fragmented_bytes() + sums.idle <= sums.free());
    }
    used.into_iter().for_each(|(block, ..)| assert!(arena.release(block).is_some()));
    arena.coalesce(0);
    assert_eq!((arena.sums().idle, arena.fragmented_bytes()), (8 * SEGMENT, 0));
    for _ in 0..4 {
        assert!(arena.carve(0, 2 * SEGMENT).is_some());
    }
}
