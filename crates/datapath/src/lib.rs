//! Loads and attaches the kernel programs; typed access to their maps.
