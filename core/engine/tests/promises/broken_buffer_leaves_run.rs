//! A buffer is kept in the state, beyond the run.
use sidecore_engine::*;

struct Broken;

impl Kernel for Broken {
    type Args<'j> = (In<'j, u32>, Out<'j, u32>);
    type Out = u32;
    type State = Option<Buf<'static, u32>>;

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (source, target): Self::Args<'j>,
    ) -> Result<u32, KernelError> {
        *cx.state = Some(cx.store.alloc::<u32>(64)?);
        drop((source, target));
        Ok(0)
    }
}

fn main() {}
