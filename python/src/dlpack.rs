//! Hand-written DLPack: a tensor over an Arrow buffer, in a capsule that keeps the buffer alive.
//!
//! Layout: <https://dmlc.github.io/dlpack/latest/c_api.html>, version 1.0 (`dltensor_versioned`) and, for consumers
//! that do not request it, the unversioned predecessor (`dltensor`).
#![expect(unsafe_code, reason = "DLPack is a C interface: structs behind pointers, freed by a callback")]

use std::ffi::{CStr, c_void};

use forebay::forms::{Element, Tensor};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// `kDLCPU`, device 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// What the capsule owns: the buffer, and the extents that `DlTensor` points to.
struct Owner {
    #[expect(dead_code, reason = "held for its buffer, shape and strides, which the tensor points to")]
    tensor: Tensor,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    owner: *mut Owner,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    owner: *mut Owner,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// Refuses requests that a CPU tensor cannot satisfy without a copy.
pub(crate) fn check_request(
    stream: Option<&Bound<'_, PyAny>>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<()> {
    if stream.is_some() {
        return Err(PyBufferError::new_err("a CPU tensor takes no stream"));
    }
    if dl_device.is_some_and(|device| device != CPU) {
        return Err(PyBufferError::new_err("the batch is in CPU memory; move the tensor with `.to(device)`"));
    }
    if copy == Some(true) {
        return Err(PyBufferError::new_err("a batch is handed out without a copy; clone the tensor"));
    }
    Ok(())
}

/// Returns a capsule over `tensor`, whose buffer lives until the consumer releases it.
pub(crate) fn to_capsule(py: Python<'_>, mut tensor: Tensor, is_versioned: bool) -> PyResult<Bound<'_, PyCapsule>> {
    let (code, bits) = match tensor.element {
        Element::Int(bits) => (0, bits),
        Element::UInt(bits) => (1, bits),
        Element::Float(bits) => (2, bits),
        Element::BFloat16 => (4, 16),
        Element::Bool => (6, 8),
    };
    if !tensor.is_whole() {
        // Unreachable; otherwise the consumer would read memory outside the tensor.
        return Err(PyBufferError::new_err("internal error: a tensor is larger than its buffer; please report it"));
    }
    let data = tensor.values.as_ptr().cast_mut().cast();
    let ndim = i32::try_from(tensor.shape.len()).map_err(|_| PyBufferError::new_err("too many dimensions"))?;
    let (shape, strides) = (tensor.shape.as_mut_ptr(), tensor.strides.as_mut_ptr());
    // Moving the vectors into the box does not move their contents.
    let owner = Box::new(Owner { tensor });
    let view = DlTensor {
        data,
        device_type: CPU.0,
        device_id: CPU.1,
        ndim,
        dtype: DataType { code, bits, lanes: 1 },
        shape,
        strides,
        byte_offset: 0,
    };
    let owner = Box::into_raw(owner);
    if is_versioned {
        // Flags 0: writable, since nobody else uses a gathered batch.
        let managed =
            ManagedVersioned { major: 1, minor: 0, owner, deleter: Some(free_versioned), flags: 0, tensor: view };
        capsule(py, Box::into_raw(Box::new(managed)), VERSIONED, drop_versioned, |managed| {
            // SAFETY: no capsule was made, so we still own the pointer.
            unsafe { free_versioned(managed) }
        })
    } else {
        let managed = Managed { tensor: view, owner, deleter: Some(free) };
        capsule(py, Box::into_raw(Box::new(managed)), UNVERSIONED, drop_unversioned, |managed| {
            // SAFETY: as above.
            unsafe { free(managed) }
        })
    }
}

fn capsule<'py, T>(
    py: Python<'py>,
    managed: *mut T,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
    on_failure: impl FnOnce(*mut T),
) -> PyResult<Bound<'py, PyCapsule>> {
    // SAFETY: `managed` is a live box and `name` is static; the capsule takes over both.
    let made = unsafe {
        let object = ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, object)
    };
    match made {
        Ok(object) => Ok(object.cast_into::<PyCapsule>()?),
        Err(error) => {
            on_failure(managed);
            Err(error)
        }
    }
}

/// Frees a versioned tensor; called once, by the consumer or by the destructor of an unconsumed capsule.
unsafe extern "C" fn free_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: both pointers come from `Box::into_raw` in `to_capsule`, and DLPack calls the deleter once.
    unsafe { drop(Box::from_raw(Box::from_raw(managed).owner)) }
}

/// Frees an unversioned tensor.
unsafe extern "C" fn free(managed: *mut Managed) {
    // SAFETY: as in `free_versioned`.
    unsafe { drop(Box::from_raw(Box::from_raw(managed).owner)) }
}

/// Frees the tensor of a capsule that still has its original name, which a consumer changes when it takes over.
unsafe extern "C" fn drop_versioned(object: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule being destroyed.
    unsafe {
        if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) == 1 {
            free_versioned(ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast());
        }
    }
}

/// As [`drop_versioned`].
unsafe extern "C" fn drop_unversioned(object: *mut ffi::PyObject) {
    // SAFETY: as in `drop_versioned`.
    unsafe {
        if ffi::PyCapsule_IsValid(object, UNVERSIONED.as_ptr()) == 1 {
            free(ffi::PyCapsule_GetPointer(object, UNVERSIONED.as_ptr()).cast());
        }
    }
}
