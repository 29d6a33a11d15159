//! Temporary stand-in.
use std::any::{Any, TypeId};
use std::collections::HashMap;
/// .
#[derive(Clone, Default, Debug)]
pub struct CoreConfig {}
/// .
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// .
    #[error("x")]
    X,
}
/// .
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// .
    #[error("kernel panicked: {0}")]
    Panicked(String),
}
/// .
pub struct Core {
    states: HashMap<TypeId, Box<dyn Any + Send>>,
}
/// .
pub struct Ctx<'c, K: Kernel> {
    state: &'c mut K::State,
}
impl<K: Kernel> Ctx<'_, K> {
    /// .
    pub fn state(&mut self) -> &mut K::State {
        self.state
    }
}
/// .
pub trait Kernel: Sized + 'static {
    /// .
    type Args<'j>;
    /// .
    type Out;
    /// .
    type State: Default + Send + 'static;
    /// .
    const LS: usize;
    /// .
    fn run(cx: &mut Ctx<'_, Self>, args: Self::Args<'_>) -> Result<Self::Out, KernelError>;
}
impl Core {
    /// .
    pub fn new(_c: CoreConfig) -> Result<Self, EngineError> {
        Ok(Self {
            states: HashMap::new(),
        })
    }
    /// .
    pub fn run<K: Kernel>(&mut self, args: K::Args<'_>) -> Result<K::Out, KernelError> {
        let state = self
            .states
            .entry(TypeId::of::<K>())
            .or_insert_with(|| Box::new(K::State::default()))
            .downcast_mut::<K::State>()
            .expect("typed");
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            K::run(&mut Ctx { state }, args)
        }))
        .map_err(|_| KernelError::Panicked("?".into()))?
    }
}
