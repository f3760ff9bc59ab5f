"""The effect of ε on utility (Li, Liu, Li, Wang, Liu), run again."""
