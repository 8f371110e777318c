#include "kernels/add_rms_norm_cpu.h"

#include "core/error.h"
#include "kernels/isa.h"

namespace fastcomm {

FC_DECLARE_FOR_EVERY_ISA(AddRmsNormFunction add_rms_norm_function(DType dtype))

AddRmsNormFunction add_rms_norm_function(DType dtype) {
  const AddRmsNormFunction function = FC_OF_CHOSEN_ISA(add_rms_norm_function)(dtype);
  if (function == nullptr) {
    throw Error(ErrorCode::kUnsupported, concat("no RMS norm of dtype ", dtype_name(dtype)));
  }
  return function;
}

}  // namespace fastcomm
