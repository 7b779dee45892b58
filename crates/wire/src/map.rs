//! Layouts of the kernel maps.
