"""Tests that are left to the long run (`slow`), each because a cheaper one of the short run guards the same law."""

import re

_LONG = (
    # other inputs of the same test stay
    "groups/test_generators.py::test_catalogue[BurgersSymmetry()]",
    "groups/test_generators.py::test_catalogue[HeatSymmetry(nu=0.1)]",  # Projective(2), Affine(2)
    "groups/test_generators.py::test_catalogue[KdVSymmetry()]",
    "groups/test_actions.py::TestGenerators::test_exponential_is_the_flow[heat from generators]",
    "groups/test_autodiff.py::test_under_vmap[heat from generators-logarithms]",
    "groups/test_autodiff.py::test_under_vmap[KdV from generators-logarithms]",
    "groups/test_autodiff.py::test_under_vmap[SO(4)-logarithms]",
    "groups/test_autodiff.py::test_under_vmap[U(2)-logarithms]",
    "groups/test_catalogue.py::TestCompile::test_full_graph[SL(3)]",
    "sde/test_learned.py::TestTarget::test_integration_by_parts[SO(3)]",
    "sde/test_denoising.py::TestNoise::test_integration_by_parts[SO(3)]",
    "sde/test_processes.py::TestWeakOrderWithDrift::test_fast[affine-steps1]",
    "sde/test_likelihood.py::TestLikelihood::test_known_laws[heat]",
    "sde/test_group_diffusion.py::TestModel::test_density[momentum]",
    "tasks/test_burgers.py::test_inversion_restores_the_error_of_the_training_domain[names1-0.03-6.0]",
    "tasks/test_burgers.py::test_inversion_restores_the_error_of_the_training_domain[names2-0.05-3.0]",
    "tasks/test_burgers.py::test_inversion_restores_the_error_of_the_training_domain[names3-0.05-3.0]",
    "tasks/test_heat_inversion.py::test_inversion_reaches_the_bar_on_a_small_run[tied_augmented.yaml-0.035]",
    "tasks/test_heat_inversion.py::test_inversion_reaches_the_bar_on_a_small_run[tied_mixed_augmented.yaml-0.035]",
    "test_geoopt.py::TestOptimisation::test_recovers_an_element_from_point_pairs[heat]",
    "inversion/test_tied.py::TestGaussianPosterior::test_mean_and_spread[1.0]",
    # another test of the same thing stays
    "inversion/test_learned_inversion.py::TestPosterior::test_symmetric_shape",  # test_two_modes_of_unequal_weight
    "symmetry/test_tutorial.py::test_new_group",  # `make docs` runs the page
    "groups/test_generators.py::TestKindsOfFlow::test_compiles",  # TestWinding
    "groups/test_geometry.py::TestMean::test_transforms",  # test_autodiff
    "sde/test_likelihood.py::TestLikelihood::test_lost_rows",  # test_group_diffusion
    "symmetry/test_find_symmetries.py::TestAnsatz::test_black_scholes",  # the catalogue
    "inversion/test_learned_inverter.py::TestTrained::test_exports",  # actions/test_image
    "tasks/test_amortized.py::TestTraining::test_distils",  # inversion/test_learned_inverter
    "tasks/test_burgers.py::test_equivariance_is_measured_and_small",  # test_image_inversion
    "tasks/test_burgers.py::test_errors_of_several_runs_are_drawn_against_their_size",  # test_sweep
    "tasks/test_heat_inversion.py::test_a_killed_run_goes_on_where_it_stopped",  # test_image_inversion, test_results
    "tasks/test_image_inversion.py::TestSmallRun::test_two_devices_count_every_image_once_and_find_the_same",  # results
    # the same law on other groups, equations or schemes; * stands for anything
    "groups/test_autodiff.py::test_derivatives_are_finite_near_the_identity[*from generators*-float32]",
    "groups/test_autodiff.py::test_derivatives_keep_the_dtype[*from generators*]",
    "groups/test_autodiff.py::test_under_vmap[*from generators*]",
    "groups/test_autodiff.py::test_under_vmap[*Projective*-logarithms]",
    "groups/test_autodiff.py::test_under_vmap[KdVSymmetry-logarithms]",
    "groups/test_catalogue.py::TestCompile::test_full_graph[SE(3)]",
    "groups/test_catalogue.py::TestCompile::test_full_graph[DirectProduct*",
    "groups/test_autodiff.py::TestCompile::test_full_graph[KdV from generators]",
    "groups/test_catalogue.py::TestCompile::test_full_graph[SO(4)]",
    "groups/test_catalogue.py::TestCompile::test_full_graph[Affine(2)]",
    "groups/test_catalogue.py::TestCompile::test_full_graph[GLPlus(2)]",
    "groups/test_generators.py::TestWinding::test_transforms",
    "sde/test_processes.py::TestDeterministic::test_order[SemidirectProduct*",
    "sde/test_processes.py::TestDeterministic::test_order[SL(2)*",
    "sde/test_processes.py::TestNoiseModes::test_memory_does_not_grow_with_the_steps",
    "sde/test_group_diffusion.py::*[momentum]",
    "tasks/test_heat_inversion.py::test_inversion_reaches_the_bar_on_a_small_run[tied.yaml-0.018]",
    "tasks/test_image_inversion.py::test_shipped_configurations_of_tied_run_with_other_networks_and_sizes[homnist*",
    "tasks/test_image_training.py::test_a_regulariser_learns[regulariser_homography]",
    "tasks/test_cli.py::test_a_number_beside_a_file[fit*",
    "tasks/test_cli.py::test_a_number_beside_a_file[test-so10*",
    "tasks/test_cli.py::test_a_number_beside_a_file[test-rotmnist*",
    "tasks/test_cli.py::test_a_number_beside_a_file[test-homnist*",
    "tasks/test_cli.py::test_a_number_beside_a_file[test-frames*",
    "tasks/test_cli.py::test_a_number_beside_a_file[test-burgers*",
    "test_geoopt.py::TestManifold::test_steps_and_transport[KdVSymmetry()]",
    "inversion/test_every_inverter.py::test_a_datum_alone_and_in_any_batch[FoCal]",
    "inversion/test_every_inverter.py::test_a_datum_alone_and_in_any_batch[KineticLangevin]",
    "inversion/test_every_inverter.py::test_a_datum_alone_and_in_any_batch[GradientDescent]",
    "inversion/test_every_inverter.py::test_a_datum_alone_and_in_any_batch[ITS]",
    "inversion/test_every_inverter.py::test_a_datum_alone_and_in_any_batch[published]",
    "symmetry/test_find_symmetries.py::test_group[eikonal]",
    "symmetry/test_find_symmetries.py::test_group[nls]",
    "symmetry/test_find_symmetries.py::test_group[nonlinear heat -4/3]",
    "symmetry/test_input.py::test_decimals_are_fractions[('u_tt*",
    "symmetry/test_input.py::test_decimals_are_fractions[('u_t + {0}*u*u_x*",
    "symmetry/test_statements.py::test_redundant_functions_do_no_harm[exp*",
    "symmetry/test_statements.py::test_redundant_functions_do_no_harm[log*",
    "symmetry/test_statements.py::test_redundant_functions_do_no_harm[sin*",
)
_PATTERN = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in _LONG))


def is_long(test: str) -> bool:
    """Whether a test, by its identifier without the folder of all tests, is left to the long run."""
    return _PATTERN.fullmatch(test) is not None
