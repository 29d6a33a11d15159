//! The end of pairs, and of what a program leaves in a context that it closes.
//!
//! ibv_close_device(3) refuses nothing: the kernel drops what is left when the context's file is
//! closed, and programs count on that (perftest's clients leave a queue).
//!
//! Must stay true: structures of what is left stay in memory, with their context's, and name
//! nothing.

use crate::pair::reset;
use crate::state::Core;

/// Drops everything of a context but its channels, whose descriptors programs may still read;
/// true if anything was left.
pub(crate) fn drop_all_of(core: &mut Core, context: u32) -> bool {
    let mut was_left = false;
    // Pairs first: they use everything else.
    let qps: Vec<u32> = handles(core.qps.each(), |qp| qp.context == context);
    for handle in qps {
        was_left = true;
        // Its peer learns of the end, after what was reported as sent.
        reset(core, handle);
        core.remove_pair(handle);
    }
    let srqs: Vec<u32> = handles(core.srqs.each(), |srq| srq.context == context);
    for handle in srqs {
        was_left = true;
        // Contexts may be mixed: another one's pair may use it, and its completion queue.
        if core.srqs.get(handle).is_some_and(|srq| srq.users == 0)
            && let Some(srq) = core.srqs.remove(handle)
        {
            core.device.drop_shared(srq.id);
        }
    }
    let cqs: Vec<u32> = handles(core.cqs.each(), |cq| cq.context == context);
    for handle in cqs {
        was_left = true;
        if core.cqs.get(handle).is_some_and(|cq| cq.users == 0) {
            core.leave_channel(handle);
            core.cqs.remove(handle);
        }
    }
    let pds: Vec<u32> = handles(core.pds.each(), |pd| pd.context == context);
    if pds.is_empty() {
        return was_left;
    }
    // No peer may reach memory that the program believes to be its own again.
    let mrs: Vec<u32> = handles(core.mrs.each(), |mr| pds.contains(&mr.pd));
    for mr in mrs.into_iter().filter_map(|mr| core.mrs.remove(mr)) {
        core.device.adapter_mut().deregister(mr.region);
    }
    let ahs: Vec<u32> = handles(core.ahs.each(), |ah| pds.contains(&ah.pd));
    for ah in ahs {
        core.ahs.remove(ah);
    }
    for pd in pds {
        core.pds.remove(pd);
    }
    true
}

impl Core {
    /// Removes a pair that has no connection any more; its context.
    pub(crate) fn remove_pair(&mut self, handle: u32) -> Option<u32> {
        let gone = self.qps.remove(handle)?;
        self.forget_number(gone.number);
        if let Some(copies) = gone.copies {
            // After the connection: it may still have been sending from them.
            self.device.adapter_mut().deregister(copies);
        }
        for cq in [gone.send_cq, gone.recv_cq] {
            if let Some(cq) = self.cqs.get(cq) {
                cq.users -= 1;
            }
        }
        if let Some(srq) = gone.srq.and_then(|srq| self.srqs.get(srq)) {
            srq.users -= 1;
        }
        self.pds.count(gone.pd, -1);
        Some(gone.context)
    }
}

/// Handles of the objects that are sought.
fn handles<'a, T: 'a>(
    all: impl Iterator<Item = (u32, &'a mut T)>,
    is_one: impl Fn(&T) -> bool,
) -> Vec<u32> {
    let found = all.filter(|(_, one)| is_one(one));
    found.map(|(handle, _)| handle).collect()
}
