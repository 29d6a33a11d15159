//! Resetting a used stack to its initial state in the same memory.
//!
//! Why here: the target `stack` of `lab/fuzz` resets two stacks before each input. Creating them
//! takes longer than most inputs, and state left over from earlier inputs leads to findings that
//! cannot be reproduced. Must stay true: the cost is proportional to the memory in use; each field
//! is named here, so that the author of a new one decides on its initial state.

use crate::frame::Capabilities;
use crate::secrets::Secrets;
use crate::shared::control::Control;
use crate::shared::counters::Counters;
use crate::shared::interface::Interface;
use crate::shared::neighbors::Neighbors;
use crate::shared::paths::Paths;
use crate::shared::shares::Shares;
use crate::shared::{Budget, Common, IDENTIFICATIONS};
use crate::stack::direct_placement::DirectPlacement;
use crate::stack::last_flow::LastFlow;
use crate::stack::link::Autoconfiguration;
use crate::stack::listener::Listeners;
use crate::stack::sessions::Sessions;
use crate::stack::udp::Datagrams;
use crate::stack::{Host, Refusal, Stack};
use crate::state::flags::Flags;
use crate::state::hot::{Hot, State};
use sidecore_random::Random;

impl Stack {
    /// Resets the stack, whose owner has closed everything, to the state that [`Stack::new`] left
    /// it in on `nic`.
    ///
    /// # Panics
    /// If a session, a buffer or a list of ranges is still in use.
    #[doc(hidden)]
    pub fn renew(&mut self, nic: &Capabilities) {
        self.process_staged();
        self.host.end_sessions();
        let Host {
            common,
            sessions,
            datagrams,
            staging,
            last_flow,
            autoconfiguration,
            fragments,
            direct_placement,
            due,
            shard,
            from_self,
            refusal,
        } = &mut self.host;
        // Before the pool is checked: incomplete packets hold buffers.
        fragments.clear(common);
        renew_common(common, nic);
        let Sessions {
            store,
            table,
            listeners,
        } = sessions;
        store.forget();
        (table.front_hits, table.searches) = (0, 0);
        *listeners = Listeners::default();
        *datagrams = Datagrams::default();
        assert!(staging.is_empty() && due.is_empty() && !*from_self);
        assert!(shard.is_alone(), "a stack that is renewed is alone");
        *last_flow = LastFlow::new();
        *refusal = Refusal::default();
        *autoconfiguration = Autoconfiguration::default();
        *direct_placement = DirectPlacement::default();
        // As `new` does, last: it queues frames by the renewed configuration.
        autoconfiguration.begin(common);
    }

    /// Control blocks of the sessions that are not closed, as text.
    #[doc(hidden)]
    #[must_use]
    pub fn open_sessions(&self) -> String {
        let all = (0..self.host.sessions.store.known())
            .map(|number| self.host.sessions.store.hot(number));
        let open: Vec<&Hot> = all.filter(|hot| hot.state() != State::Closed).collect();
        format!("{open:#?}")
    }
}

impl Host {
    /// Ends sessions without an owner, in whatever state.
    fn end_sessions(&mut self) {
        for number in 0..self.sessions.store.known() {
            let mut session = self.sessions.access(&mut self.common, number);
            if session.hot.state() != State::Closed {
                let held = !session.hot.has(Flags::DETACHED | Flags::EMBRYO);
                assert!(!held, "session {number} has an owner");
                session.finish(None);
            }
        }
        self.sweep();
        let taken = self.sessions.store.taken();
        assert_eq!(taken, 0, "sessions are not given back");
    }
}

fn renew_common(common: &mut Common, nic: &Capabilities) {
    let Common {
        now_ns,
        now_us,
        now_ms,
        tick,
        config,
        pool,
        scoreboards,
        out_of_order,
        wheel,
        secrets,
        random,
        interface,
        neighbors,
        control,
        counters,
        ready,
        pending_events,
        newly_closed,
        newly_established,
        starved,
        time_wait,
        challenges,
        errors,
        next_port,
        paths,
        shares,
        identifications,
        long,
    } = common;
    (*now_ns, *now_us, *now_ms, *tick) = (0, 0, 0, 0);
    assert_eq!(pool.taken(), 0, "buffers are not given back");
    assert_eq!(scoreboards.taken(), 0, "scoreboards are not given back");
    assert_eq!(out_of_order.taken(), 0, "ranges are not given back");
    // The slabs keep their memory, and the wheel its chunks: creating them is what takes time.
    wheel.clear();
    *random = Random::new(config.seed);
    *secrets = Secrets::new(random);
    *interface = Interface::new(nic, config);
    *neighbors = Neighbors::with_fixed(&config.neighbors);
    empty(control);
    *counters = Counters::default();
    ready.clear();
    pending_events.clear();
    assert!(newly_closed.is_empty() && newly_established.is_empty());
    starved.clear();
    time_wait.clear();
    (*challenges, *errors, *next_port) = (Budget::NEW, Budget::NEW, 0);
    *paths = Paths::default();
    *shares = Shares::default();
    *identifications = [0; IDENTIFICATIONS];
    long.clear();
}

/// Drops queued frames, as if the NIC had taken them.
fn empty(control: &mut Control) {
    control.flush(&mut |_| true, &mut 0);
}
