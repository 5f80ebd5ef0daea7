//! PyTorch profiler traces (Kineto Chrome JSON).
