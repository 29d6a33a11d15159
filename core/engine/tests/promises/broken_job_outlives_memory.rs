//! Memory is lent to a job that outlives it.
use sidecore_engine::*;

struct Sum;

impl Kernel for Sum {
    type Args<'j> = In<'j, u32>;
    type Out = u32;
    type State = ();

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, values: In<'j, u32>) -> Result<u32, KernelError> {
        Ok(cx.mfc.fetch(values)?.iter().sum())
    }
}

fn main() {
    let engine = Engine::start(EngineOptions::default()).unwrap();
    engine.scope(|scope| {
        let values = vec![1, 2, 3];
        let _ = scope.spawn::<Sum>(In::new(&values));
    });
}
