//! The trace that `sidecore spe run` shows and draws: lines of tab-separated fields in a file.
//!
//! Fields: microseconds since the library's first use, context, event, and the event's own fields:
//!
//! | event | fields | |
//! |---|---|---|
//! | `ready` | | it waits for an engine |
//! | `run` | engine | that engine has it |
//! | `wait` | operation, channel | parked |
//! | `spun` | operation, channel, microseconds | waited on its engine until now |
//! | `at` | DMA commands, bytes got, put; bytes of the store: program, heap, stack | |
//! | `stop` | | |
//! | `full` | | nothing follows: the file has as many lines as it may |
//!
//! Why here: the format has one place. `write` is the library's side, `read` that of the command
//! which started the program; the two run in different processes.

mod read;
#[cfg(target_arch = "x86_64")]
mod write;

pub use read::{Cause, Part, State, Trace};
#[cfg(target_arch = "x86_64")]
pub(crate) use write::*;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    //! The two sides together: lines as they are written, read in pieces.

    use super::write::text;
    use super::{Cause, State, Trace};

    #[test]
    fn states_become_times() {
        let text = "0\t7\tready\n2\t7\trun\t0\n10\t7\twait\t1\t29\n40\t7\tready\n45\t7\trun\t1\n\
                60\t7\tspun\t1\t3\t5\n70\t7\tat\t3\t4096\t128\t900\t16\t200\n70\t7\tstop\n\
                75\t8\trun\t0\n80\t8\twa";
        let mut trace = Trace::default();
        // As a reader may find it: in pieces that end anywhere.
        let (head, tail) = text.split_at(33);
        trace.feed(head);
        trace.feed(tail);
        let part = &trace.contexts[&7];
        assert_eq!(part.waits_us, [30, 0, 5, 0, 0]);
        assert_eq!((part.ran_us, part.ready_us), (8 + 10 + 10, 2 + 5));
        assert_eq!(
            (part.commands, part.got_bytes, part.put_bytes),
            (3, 4096, 128)
        );
        assert_eq!(part.store_bytes, [900, 16, 200]);
        assert_eq!(part.state(), State::Stopped);
        let spun = (55, 60, State::Waits(Cause::Signal));
        assert!(part.spans(100).any(|span| span == spun));
        assert_eq!(trace.contexts[&8].states, [(75, State::Runs(0))]);
        assert_eq!(trace.end_us, 75);
        trace.feed("it\t1\t24\n");
        assert_eq!(trace.contexts[&8].state(), State::Waits(Cause::Dma));
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let mut trace = Trace::default();
        trace
            .feed("\n1\n2\t1\n3\tx\trun\t0\n4\t1\trun\n5\t1\trun\tx\n6\t1\tspun\t1\t29\t9\nfull\n");
        assert!(
            trace
                .contexts
                .get(&1)
                .is_none_or(|part| part.states.is_empty())
        );
        assert!(!trace.full);
        trace.feed("9\t1\tfull\n");
        assert!(trace.full);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut trace = Trace::default();
        let mut put = |time, rest: &str| trace.feed(&text(time, 5, format_args!("{rest}")));
        put(1, "ready");
        put(3, "run\t2");
        put(9, "wait\t2\t30");
        put(10, "at\t1\t128\t256\t4096\t0\t512");
        put(11, "stop");
        let part = &trace.contexts[&5];
        assert_eq!(part.states[1], (3, State::Runs(2)));
        assert_eq!(part.states[2], (9, State::Waits(Cause::OutMailbox)));
        assert_eq!((part.ready_us, part.ran_us), (2, 6));
        assert_eq!(part.waits_us.iter().sum::<u64>(), 2);
        assert_eq!((part.got_bytes, part.put_bytes), (128, 256));
        assert_eq!(part.state(), State::Stopped);
    }

    #[test]
    fn numbers_that_are_too_large_are_no_contexts_and_no_engines() {
        let mut trace = Trace::default();
        trace.feed("1\t4294967296\tready\n2\t1\trun\t4294967296\n");
        assert!(trace.contexts.keys().all(|id| *id == 1));
        assert!(
            trace
                .contexts
                .get(&1)
                .is_none_or(|part| part.states.is_empty())
        );
    }
}
