//! One started task: a stack of its own, and the switch to it and back.
//!
//! Why here: ordinary synchronous code off-loads, and another task runs meanwhile. The switch costs
//! a few nanoseconds (`corosensei`). Code that waits asks [`current_bell`]: a task then parks, a
//! thread blocks.
//!
//! Why `unsafe` is here: the code on a fiber finds its way back through a pointer that its host
//! thread keeps while it runs, and the host calls a parked fiber's condition from its own stack.
//! Must stay true: a fiber is resumed only by the thread that started it (its stack may hold values
//! that are not `Send`, and addresses of thread-locals). `CURRENT` names a context exactly while
//! its fiber runs. A condition is called only while its fiber is suspended in [`park`].
#![allow(unsafe_code)]

use super::accounts::{Accounts, Counts};
use super::core::TaskCore;
use super::limiter::HELD_NS_MAX;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use sidecore_sys::clock;
use sidecore_trace as trace;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// State of a fiber that its code and its host share.
pub(super) struct Context {
    yielder: Cell<*const Yielder<(), ()>>,
    /// Condition that it waits for while parked; on its own stack.
    condition: Cell<Option<*mut dyn FnMut() -> bool>>,
    /// Latest time at which a parked fiber is resumed, on the clock of `sidecore_sys::clock`.
    due_ns: Cell<u64>,
    /// True if no notification will announce the condition, so that the host has to look now and
    /// then.
    unannounced: Cell<bool>,
    /// Number of engines that its code is inside of.
    drives: Cell<u32>,
    /// True if it waits for an engine, and so counts as ready though it is parked.
    wants_engine: Cell<bool>,
    /// The task that runs on it: the one it was started for, or one that it joined before that had
    /// begun.
    task: RefCell<Arc<TaskCore>>,
    /// The number of the task that it was started for: its key in its group.
    root: Cell<u64>,
    /// True if its group has it on its lists ([`super::limiter`]).
    listed: Cell<bool>,
    /// Number of waits for other tasks that it is in.
    aside: Cell<u32>,
    host: super::host::Link,
}

thread_local! {
    /// The context of the fiber that this thread runs now, or null.
    static CURRENT: Cell<*const Context> = const { Cell::new(std::ptr::null()) };
    /// `Context::drives` for code on no fiber.
    static THREAD_DRIVES: Cell<u32> = const { Cell::new(0) };
}

/// A started task.
pub(super) struct Fiber {
    coroutine: Coroutine<(), (), (), DefaultStack>,
    context: Rc<Context>,
}

/// Reason why a fiber returned to its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It yielded: it could go on at once.
    Yielded,
    /// It waits for its condition.
    Parked,
    /// Its task ended.
    Ended,
}

/// An ended fiber's stack and context, for the next one.
pub(super) struct Spare {
    stack: DefaultStack,
    context: Option<Rc<Context>>,
}

impl Spare {
    /// # Errors
    /// If there is no memory for a stack.
    pub(super) fn new(stack_bytes: usize) -> std::io::Result<Self> {
        Ok(Self {
            stack: DefaultStack::new(stack_bytes)?,
            context: None,
        })
    }
}

impl Fiber {
    /// A fiber that will run `task`, which this host has begun.
    pub(super) fn new(spare: Spare, task: Arc<TaskCore>, host: &super::host::Link) -> Self {
        let own = Arc::clone(&task);
        let root = task.id.0;
        let context = match spare.context {
            Some(context) => {
                context.task.replace(task);
                context.root.set(root);
                context.listed.set(false);
                context
            }
            None => Rc::new(Context {
                yielder: Cell::new(std::ptr::null()),
                condition: Cell::new(None),
                due_ns: Cell::new(u64::MAX),
                unannounced: Cell::new(false),
                drives: Cell::new(0),
                wants_engine: Cell::new(false),
                task: RefCell::new(task),
                root: Cell::new(root),
                listed: Cell::new(false),
                aside: Cell::new(0),
                host: host.clone(),
            }),
        };
        let coroutine = Coroutine::with_stack(spare.stack, move |yielder: &Yielder<(), ()>, ()| {
            with_current(|current| {
                if let Some(context) = current {
                    context.yielder.set(yielder);
                }
            });
            // A task's panic is caught within.
            own.run();
        });
        Self { coroutine, context }
    }

    /// Switches to the fiber until it gives its host back.
    pub(super) fn resume(&mut self) -> Outcome {
        // It points into the fiber's stack, which changes from here on.
        self.context.condition.set(None);
        let is_traced = trace::is_on();
        if is_traced {
            trace::resume(self.context.root.get());
        }
        let before = CURRENT.replace(Rc::as_ptr(&self.context));
        let result = self.coroutine.resume(());
        CURRENT.set(before);
        if is_traced {
            trace::suspend();
        }
        match result {
            CoroutineResult::Return(()) => Outcome::Ended,
            CoroutineResult::Yield(()) if self.context.condition.get().is_some() => Outcome::Parked,
            CoroutineResult::Yield(()) => Outcome::Yielded,
        }
    }

    /// True if a parked fiber has something to go on for: its condition, its time. A condition that
    /// panics counts as true; it panics again on its own fiber.
    pub(super) fn is_wanted(&self, now_ns: u64) -> bool {
        if self.context.due_ns.get() <= now_ns {
            return true;
        }
        let Some(condition) = self.context.condition.get() else {
            return true;
        };
        // SAFETY: the fiber is suspended in `park`, whose caller's frame holds the condition until
        // it is resumed; nothing else uses it meanwhile; this is the thread that it was made on.
        catch_unwind(AssertUnwindSafe(|| unsafe { (*condition)() })).unwrap_or(true)
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.context.due_ns.get()
    }

    pub(super) fn is_unannounced(&self) -> bool {
        self.context.unannounced.get()
    }

    pub(super) fn wants_engine(&self) -> bool {
        self.context.wants_engine.get()
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.context.task.borrow().is_urgent()
    }

    /// The task that an ended fiber was started for.
    pub(super) fn with_task<R>(&self, look: impl FnOnce(&TaskCore) -> R) -> R {
        look(&self.context.task.borrow())
    }

    /// Its number on its group's lists, if it is on them.
    pub(super) fn listed(&self) -> Option<u64> {
        self.context.listed()
    }

    /// Reusable parts of an ended fiber. It keeps its task's memory until then, nothing
    /// that the task borrowed.
    pub(super) fn into_spare(self) -> Spare {
        Spare {
            stack: self.coroutine.into_stack(),
            context: Some(self.context),
        }
    }
}

impl Context {
    fn listed(&self) -> Option<u64> {
        self.listed.get().then(|| self.root.get())
    }
}

/// Runs `look` with the context of the fiber that this is called on, if it is one.
fn with_current<R>(look: impl FnOnce(Option<&Context>) -> R) -> R {
    // SAFETY: `CURRENT` is set by `resume` for exactly as long as the fiber runs on this thread,
    // and its `Fiber` owns the context at least as long as its stack, on which this frame is.
    look(unsafe { CURRENT.get().as_ref() })
}

#[cfg(loom)]
mod model {
    //! A host with one task, for loom: it sleeps at its bell until the task may go on.

    use crate::task::bell::bells;
    use std::cell::Cell;

    loom::thread_local! {
        static BELL: Cell<Option<usize>> = Cell::new(None);
    }

    /// Runs `work` as the one task of the host with this bell.
    #[cfg(test)]
    pub(crate) fn on_model_host(bell: usize, work: impl FnOnce()) {
        BELL.with(|own| own.set(Some(bell)));
        work();
        BELL.with(|own| own.set(None));
    }

    pub(crate) fn current_bell() -> Option<usize> {
        BELL.with(Cell::get)
    }

    pub(crate) fn look_briefly<T>(_: &mut impl FnMut() -> Option<T>) -> Option<T> {
        None
    }

    pub(crate) fn park_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
        let bell = current_bell().expect("only on a host");
        let mut value = None;
        loop {
            if value.is_none() {
                value = condition();
            }
            if let Some(value) = value {
                return value;
            }
            bells().bell(bell).sleep_unless(None, || {
                value = condition();
                value.is_some()
            });
        }
    }
}
#[cfg(all(test, loom))]
pub(crate) use model::on_model_host;
#[cfg(loom)]
pub(crate) use model::{current_bell, look_briefly, park_for};

/// The bell of the host that runs this task, if this may be parked: `None` on a plain thread, and
/// while a panic unwinds (another task must not see this thread panicking).
#[cfg(not(loom))]
pub(crate) fn current_bell() -> Option<usize> {
    with_current(|current| current.map(|context| context.host.bell))
        .filter(|_| !std::thread::panicking())
}

/// True if the waiting thread or fiber has nothing else to do, and so will look soon: always on a
/// plain thread.
pub(crate) fn is_attentive() -> bool {
    with_current(|current| current.is_none_or(|context| !context.host.is_busy()))
}

/// Looks at `condition` for a few microseconds without switching, where the host would do nothing
/// but that anyway.
#[cfg(not(loom))]
pub(super) fn look_briefly<T>(condition: &mut impl FnMut() -> Option<T>) -> Option<T> {
    let is_alone = || with_current(|current| current.is_some_and(|c| c.host.is_alone()));
    if !is_alone() {
        return None;
    }
    for _ in 0..LOOKS {
        if let Some(value) = condition() {
            return Some(value);
        }
        std::hint::spin_loop();
    }
    None
}

/// Looks of a task that is alone before it is parked: about 2 us.
#[cfg(not(loom))]
const LOOKS: u32 = 50;

/// The task that this is called in.
pub(super) fn current_task() -> Option<Arc<TaskCore>> {
    with_current(|current| current.map(|context| Arc::clone(&context.task.borrow())))
}

/// The host that this is called on.
pub(super) fn current_host() -> Option<super::host::Link> {
    with_current(|current| current.map(|context| context.host.clone()))
}

/// Asks the task that this is called in, without counting references.
pub(super) fn ask_current<R>(ask: impl FnOnce(&TaskCore) -> R) -> Option<R> {
    with_current(|current| current.map(|context| ask(&context.task.borrow())))
}

/// Notes, until the returned value is dropped, that the task waits for an engine of the pool with
/// these counts: it is ready on the host, even while parked.
pub(crate) fn want_engine(counts: &Counts) -> impl Drop {
    struct Wants<'a>(&'a Counts);
    impl Drop for Wants<'_> {
        fn drop(&mut self) {
            self.0.wanting.fetch_sub(1, Ordering::Relaxed);
            set(false);
        }
    }
    fn set(wants: bool) {
        with_current(|current| {
            if let Some(context) = current {
                context.wants_engine.set(wants);
            }
        });
    }
    // Only advice to the policy, so in no order with the wait itself.
    counts.wanting.fetch_add(1, Ordering::Relaxed);
    set(true);
    Wants(counts)
}

/// Counts the engines that the code here is inside of; code inside one must not wait for another.
/// Returns the number before.
pub(crate) fn count_drives(more: i32) -> u32 {
    with_current(|current| {
        let count = |drives: &Cell<u32>| {
            let before = drives.get();
            drives.set(before.wrapping_add_signed(more));
            before
        };
        match current {
            Some(context) => count(&context.drives),
            None => THREAD_DRIVES.with(count),
        }
    })
}

/// Runs `work` as another task on this fiber.
pub(super) fn run_as(task: Arc<TaskCore>, work: impl FnOnce()) {
    let swap = |task| with_current(|current| current.map(|c| c.task.replace(task)));
    let before = swap(task);
    work();
    if let Some(before) = before {
        swap(before);
    }
}

/// Counts this task, until the returned value is dropped, as one that waits for other tasks: it
/// takes no place among those at work. Does nothing on a plain thread.
pub(super) fn step_aside() -> impl Drop {
    struct Aside;
    impl Drop for Aside {
        fn drop(&mut self) {
            change(-1);
        }
    }
    fn change(more: i32) {
        with_current(|current| {
            let Some(context) = current else { return };
            let before = context.aside.get();
            let after = before.wrapping_add_signed(more);
            context.aside.set(after);
            let group = &context.host.group;
            match (before, after) {
                (0, _) => group.limiter.step_aside(context.listed(), &group.pool.room),
                (_, 0) => group.limiter.come_back(context.listed()),
                _ => {}
            }
        });
    }
    change(1);
    Aside
}

/// Before an off-load: holds this task while more are at work than the policy of `pool` wants, and
/// as many as it wants are older. Not one that is urgent, on an engine, or on other hosts than that
/// pool's; nor a plain thread.
pub(crate) fn await_admission(pool: &Accounts) {
    with_current(|current| {
        let Some(context) = current else { return };
        let group = &context.host.group;
        let limit = || group.live_limit();
        if !group.limiter.is_over(limit())
            || !std::ptr::eq(&raw const *group.pool, pool)
            || context.drives.get() > 0
            || context.aside.get() > 0
            || context.task.borrow().is_urgent()
            || std::thread::panicking()
        {
            return;
        }
        let root = context.root.get();
        context.listed.set(true);
        if !group.limiter.must_be_held(root, limit()) {
            return;
        }
        let counts = &group.pool.counts;
        counts.held.fetch_add(1, Ordering::Relaxed);
        group.pool.room.expect(context.host.bell);
        let task = Arc::clone(&context.task.borrow());
        // No host can tell every way in which tasks wait for one another, so a hold always has a
        // limit.
        let due_ns = clock::now_ns() + HELD_NS_MAX;
        let mut returned = false;
        while !returned && !task.is_cancelled() && clock::now_ns() < due_ns {
            let mut look = || {
                returned = returned || group.limiter.try_return(root, limit());
                returned || task.is_cancelled()
            };
            park(&mut look, due_ns, false);
        }
        // Whatever ended the wait; a task that returned by itself is on the list already.
        group.limiter.leave(root);
        counts.held.fetch_sub(1, Ordering::Relaxed);
        group.limiter.made_room(&group.pool.room);
    });
}

/// Lets the host's other tasks run. Does nothing on a plain thread.
pub(super) fn give_way() {
    with_current(|current| {
        if let Some(context) = current.filter(|_| !std::thread::panicking()) {
            suspend(context);
        }
    });
}

/// Parks this fiber until `condition` is true, or until `due_ns`; it may return early. Must be
/// called on a fiber.
pub(super) fn park(condition: &mut dyn FnMut() -> bool, due_ns: u64, unannounced: bool) {
    with_current(|current| {
        let Some(context) = current else { return };
        let condition: *mut (dyn FnMut() -> bool + '_) = condition;
        // SAFETY: only the lifetime changes. The pointer is used by `is_wanted` while this fiber is
        // suspended below, and dropped by `resume`; this frame borrows the condition throughout.
        let condition: *mut (dyn FnMut() -> bool + 'static) =
            unsafe { std::mem::transmute(condition) };
        context.due_ns.set(due_ns);
        context.unannounced.set(unannounced);
        // Set last before the switch: it distinguishes a park from a yield.
        context.condition.set(Some(condition));
        suspend(context);
        context.due_ns.set(u64::MAX);
    });
}

/// Parks this fiber until `condition` gives a value. Must be called on a fiber.
#[cfg(not(loom))]
pub(super) fn park_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    loop {
        let mut value = None;
        park(
            &mut || {
                if value.is_none() {
                    value = condition();
                }
                value.is_some()
            },
            u64::MAX,
            false,
        );
        // A condition that panicked when its host looked panics here, where it belongs.
        if let Some(value) = value.or_else(&mut condition) {
            return value;
        }
    }
}

fn suspend(context: &Context) {
    // SAFETY: `context` is the running fiber's (`with_current`), and its yielder lives at the root
    // of the stack that this runs on.
    unsafe { (*context.yielder.get()).suspend(()) };
}
