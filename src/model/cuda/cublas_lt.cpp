// Looks the functions up by name.
#include "model/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace kvart::cuda {

Result<CublasLt> CublasLt::load() {
  const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // It stays loaded: what it has made on the device goes with the process.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{ErrorCode::unsupported,
                 file + " can't be loaded (" + dlerror() +
                     "): install CUDA's libraries, or set LD_LIBRARY_PATH to where it is"};
  }
  CublasLt found;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    const std::string symbol = std::string("cublasLt") + name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        dlsym(library, symbol.c_str()));
    if (function == nullptr) missing += " " + symbol;
  };
#define KVART_CUBLAS_LT(name) find(found.name, #name)
  KVART_CUBLAS_LT(Create);
  KVART_CUBLAS_LT(Destroy);
  KVART_CUBLAS_LT(Matmul);
  KVART_CUBLAS_LT(MatmulAlgoGetHeuristic);
  KVART_CUBLAS_LT(MatmulDescCreate);
  KVART_CUBLAS_LT(MatmulDescDestroy);
  KVART_CUBLAS_LT(MatmulDescSetAttribute);
  KVART_CUBLAS_LT(MatmulPreferenceCreate);
  KVART_CUBLAS_LT(MatmulPreferenceDestroy);
  KVART_CUBLAS_LT(MatmulPreferenceSetAttribute);
  KVART_CUBLAS_LT(MatrixLayoutCreate);
  KVART_CUBLAS_LT(MatrixLayoutDestroy);
#undef KVART_CUBLAS_LT
  if (missing.empty()) return found;
  return Error{ErrorCode::unsupported, file + " lacks" + missing};
}

}  // namespace kvart::cuda
