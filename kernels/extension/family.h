// A family's own files as generic code sees them, and a call of it on its way to a kernel.
#pragma once

#include <string_view>
#include <vector>

#include "extension/call.h"
#include "extension/selection.h"

namespace gemmill {

// Memory for the length of a call's launches, from torch's allocator, which knows of streams and graph capture. Asked directly it takes
// the host less time than a tensor does. Throws std::runtime_error where there is none.
class Workspace {
 public:
  Workspace(int64_t bytes, int32_t device);
  ~Workspace();
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;
  void* data() const;

 private:
  AtenTensorHandle handle_ = nullptr;
  void *lent_ = nullptr, *raw_ = nullptr;
};

// A checked call, and its row of the table.
struct Chosen {
  Row const& row;
  int32_t device, sm_count;

  // The workspace that the row's kernel asks for, for who launches it several times.
  Workspace workspace_for(void const* args) const;

  // Launches the row's kernel with arguments of the family's own struct. Throws std::runtime_error where that fails.
  template <class Arguments>
  void launch(Arguments const* args) const {
    launch(args, sizeof(Arguments));
  }
  void launch(void const* args, int64_t bytes) const;
};

// The code that answers the ops of a family. One exists for each, as long as the library; all are in a list, and generic code knows no
// other. It looks arguments and values up by their names in the family's declaration, once at load.
struct Family {
  // The inputs of the choice; the class is that of the contract, unless this sets another. False where there is nothing to do.
  using Asks = bool(OpCall const& call, Call& asked);
  using Launches = void(OpCall const& call, Chosen const& chosen);

  Family(char const* name, std::vector<char const*> tensors, std::vector<char const*> values, std::vector<Special> specials,
         Asks* asks, Launches* launches, Model model = {});
  // Null where there is none of this name.
  static Family const* named(std::string_view name);

  char const* name;
  std::vector<char const*> tensors, values;
  std::vector<Special> specials;
  Asks* asks;
  Launches* launches;
  Model model;
  Family const* next;
};

// Serves a call that its contract allows; false where there was nothing to do.
bool run(OpCall& call);

}  // namespace gemmill
