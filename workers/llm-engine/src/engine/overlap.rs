//! Host work on other threads while the engine's thread launches a step.

/// Runs `task` on each item on the threads of rayon's pool while `main` runs on this thread, to which the device may be
/// bound. Returns the result of `main` once all tasks are done.
pub(super) fn run_overlapped<'a, T: Send + 'a, R>(
    items: impl Iterator<Item = &'a mut T>,
    task: impl Fn(&mut T) + Sync,
    main: impl FnOnce() -> R,
) -> R {
    rayon::in_place_scope(|scope| {
        let task = &task;
        items.for_each(|item| scope.spawn(move |_| task(item)));
        main()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn tasks_run_on_other_threads_while_the_main_function_runs() {
        let (sender, receiver) = channel();
        let mut items = [1, 2, 3];
        let task = |item: &mut i32| {
            *item *= 10;
            sender.send(thread::current().id()).unwrap();
        };
        // Would wait forever if the tasks ran after it.
        let threads = run_overlapped(items.iter_mut(), task, || [(); 3].map(|()| receiver.recv().unwrap()));
        assert!(!threads.contains(&thread::current().id()));
        assert_eq!(items, [10, 20, 30]);
    }
}
