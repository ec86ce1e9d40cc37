// What the Python package of RLtools trains on, given this folder: RLtools' own pendulum, in C++.
#include <rl_tools/rl/environments/pendulum/operations_generic.h>

template <typename T, typename TI>
using ENVIRONMENT_FACTORY = rl_tools::rl::environments::Pendulum<rl_tools::rl::environments::pendulum::Specification<T, TI>>;
